"""Apache Iceberg tables over the files of datasets: what their metadata say, without reading or writing anything."""
