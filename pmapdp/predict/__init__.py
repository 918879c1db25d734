"""One command: ask an exported model about inputs of your own."""
