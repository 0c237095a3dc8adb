"""How clients train and what the server does with released sums: models, local steps, engines."""
