"""The worker's figures: drain rates, one slow task among many, idle cost, and what a killed worker leaves behind."""
