"""Sources that are processes of their own: cron schedules, arriving files."""
