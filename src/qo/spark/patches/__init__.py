"""Changes to code of PySpark and py4j, each for a measured gain."""
