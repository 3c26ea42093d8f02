module attnkit/step

go 1.19

require (
	attnkit v0.0.0
	attnkit/samples v0.0.0
)

replace attnkit => ../../../../hosts/go

replace attnkit/samples => ../../../../samples/go
