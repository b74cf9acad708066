"""Small models of the protocols over the pure core, explored over all interleavings: ``docs/reference/proof.md``."""
