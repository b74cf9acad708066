"""Files in and out: committed inputs as frames, frames as files of an attempt."""
