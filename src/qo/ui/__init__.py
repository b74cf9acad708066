"""The dashboard: the page, and who serves it. The page itself is written in TypeScript, in ``ui/`` of the checkout."""
