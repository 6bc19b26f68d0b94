"""Chat templates in the bounded instruction form: its reader, its values, its filters."""
