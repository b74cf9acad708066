"""The contestants, qo among them: each module is run as a process of its own by ``bench.process``."""
