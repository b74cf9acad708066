"""The state database: schema, migrations, transactions."""
