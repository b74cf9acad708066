"""Published datasets as tables of Apache Iceberg: their data files, manifests and documents."""
