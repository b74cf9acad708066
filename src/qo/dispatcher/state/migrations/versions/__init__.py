"""One module for each step; a step that was ever released does not change."""
