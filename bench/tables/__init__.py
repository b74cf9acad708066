"""Tables: what it takes to keep them."""
