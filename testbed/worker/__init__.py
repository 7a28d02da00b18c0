"""One worker process a host: started, watched and called by the controller."""
