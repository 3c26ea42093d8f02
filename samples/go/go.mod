module attnkit/samples

go 1.19

require attnkit v0.0.0

replace attnkit => ../../hosts/go
