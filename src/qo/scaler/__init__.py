"""The process that starts and drains the workers of runtimes, as their load says."""
