"""Tables as CSV, Markdown, LaTeX and text."""
