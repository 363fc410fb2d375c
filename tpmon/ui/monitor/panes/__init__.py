"""The painters of the live screen: a file a pane. Pure."""
