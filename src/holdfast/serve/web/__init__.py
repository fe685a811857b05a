"""The web page and its API: starlette, server-sent events, and static files of this package."""
