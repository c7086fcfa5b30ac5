"""The page: a local web application over run folders."""
