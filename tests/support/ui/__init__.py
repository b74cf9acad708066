"""Browsers, dashboards and what they show."""
