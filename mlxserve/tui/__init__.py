"""The terminal client. It speaks HTTP and nothing else: it knows no engine and no model, only OpenAI's interface."""
