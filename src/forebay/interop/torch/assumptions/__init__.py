"""What a program without values reads in their place."""
