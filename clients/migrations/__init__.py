"""The ledger's schema, step by step (Alembic). A step that has been released is never changed; a new one is added.

`relight.clients.ledger_versions` runs them; `head` there names the newest.
"""
