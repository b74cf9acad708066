"""The logs of attempts: what operators print and log, kept beside the data."""
