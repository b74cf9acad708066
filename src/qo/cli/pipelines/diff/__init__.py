"""qo dataset diff by row: two versions of a dataset, and the rows in which they differ."""
