{{- define "streamd.labels" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "streamd.peers" -}}
{{- $domain := printf "%s-peers.%s.svc.%s" .Release.Name .Release.Namespace .Values.clusterDomain -}}
{{- range $ordinal := until (int .Values.replicas) }}{{ if $ordinal }},{{ end }}{{ $.Release.Name }}-{{ $ordinal }}.{{ $domain }}:4438{{ end }}
{{- end }}
