"""Parts of the HTML report: template, style sheet, script, and one module per section."""
