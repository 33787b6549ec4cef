"""From an executed notebook to one HTML file that opens offline, and to a PDF."""
