"""The projects that ``qo init`` makes, one module each, and how they are written."""
