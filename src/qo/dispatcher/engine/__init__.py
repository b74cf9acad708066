"""The dispatcher's engine: its loops (``loops``), what runs them (``loop``), and what they share."""
