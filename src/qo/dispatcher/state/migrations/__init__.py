"""How the tables came to be, step by step. ``qo.dispatcher.state.upgrade`` takes the steps."""
