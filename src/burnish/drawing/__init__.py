"""What a person looks at, as HTML: curves, tokens and tables, made of plain numbers and texts."""
