"""Production code in virtual time, under faults that a seed draws."""
