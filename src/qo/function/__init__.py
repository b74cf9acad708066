"""Code of users: bundles, their manifest and archive, the sandbox, and the handler that runs one for an attempt.

Everything here also runs in AWS Lambda, where little else is: only msgspec, the standard library and ``core`` are
imported.
"""
