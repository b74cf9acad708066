"""Effects outside qo, which only one edition of a job may have."""
