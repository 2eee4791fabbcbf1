"""The words of texts: their scripts, languages and stems."""
