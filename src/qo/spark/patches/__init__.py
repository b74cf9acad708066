"""Changes to code of PySpark, py4j and Hadoop. ``table`` lists all of them, with reasons and versions."""
