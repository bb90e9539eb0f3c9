"""Text handling that no model family owns: cutting long text into pieces."""
