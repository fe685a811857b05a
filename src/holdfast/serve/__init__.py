"""Watch runs and look back: live state, web page, terminal view, metrics, history store."""
