"""Parts of chain search: mechanics of hinged chains, fitted to logs, tried and steered."""
