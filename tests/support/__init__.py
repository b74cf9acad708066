"""What tests are made of: servers, stores, workers, dispatchers, Spark, browsers."""
