"""Versions of pipelines: deploy, rebuild, activate, roll back, backfill, pause."""
