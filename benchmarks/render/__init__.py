"""What the render tier can do by itself: the generate service is one that answers at once."""
