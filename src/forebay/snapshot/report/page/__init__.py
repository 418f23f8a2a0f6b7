"""Parts of the HTML report: template, style sheet, built script, data of the script, and sections of text."""
