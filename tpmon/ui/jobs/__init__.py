"""The screen of all jobs: a live table with a cursor; enter opens the live screen of one of them."""
