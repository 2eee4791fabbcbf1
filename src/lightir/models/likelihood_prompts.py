"""Prompts of query likelihood (LLM-QL), which recipes use without torch."""

PASSAGE_PROMPT = "Instruct: Given a retrieved passage, summarize the passage.\nPassage: "
PASSAGE_SUFFIX = "\nSummarization: "
QUERY_INSTRUCTION = "Given a web search query, retrieve the most relevant passage that answers the query."
QUERY_SUFFIX = "\nThe most relevant passage: "
"""Prompts of the paper (sections 4 and 5), with the line breaks of the authors' code."""
