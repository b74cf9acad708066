"""The tasks of pipelines: rows of the state database, moved by the rules of ``qo.core.lifecycle``."""
