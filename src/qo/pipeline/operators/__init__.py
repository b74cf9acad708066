"""Built-in operators: one declaration each, and the rules by which a job is checked against it."""
