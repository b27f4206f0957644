{{- define "redfence.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "redfence.peers" -}}
{{ include "redfence.fullname" . }}-peers
{{- end -}}

{{- define "redfence.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "redfence.labels" -}}
{{ include "redfence.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "redfence.authSecret" -}}
{{ default (printf "%s-auth" (include "redfence.fullname" .)) .Values.auth.existingSecret }}
{{- end -}}

{{- define "redfence.tlsSecret" -}}
{{ required "tls.existingSecret: name a secret with tls.crt, tls.key and ca.crt, or set tls.enabled=false (docs/kubernetes.md)" .Values.tls.existingSecret }}
{{- end -}}

{{- define "redfence.serviceHost" -}}
{{ include "redfence.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The founding members, by the names their pods will have. */}}
{{- define "redfence.cluster" -}}
{{- $members := list -}}
{{- range $ordinal := until (int .Values.founders) -}}
{{- $pod := printf "%s-%d" (include "redfence.fullname" $) $ordinal -}}
{{- $members = append $members (printf "%d=%s.%s.%s.svc:7380" (add1 $ordinal) $pod (include "redfence.peers" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{/* Environment of both containers of a pod. */}}
{{- define "redfence.env" -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: PEERS
  value: {{ include "redfence.peers" . }}.{{ .Release.Namespace }}.svc
- name: REDFENCE_DATA
  value: /var/lib/redfence/data
# For programs an operator runs in the pod (redfence cluster, redfence locks).
- name: REDFENCE_ADDR
  value: {{ include "redfence.serviceHost" . }}:{{ .Values.service.port }}
- name: REDFENCE_PASSWORD_FILE
  value: /etc/redfence/auth/password
{{- end -}}

{{/*
The id of a node is its ordinal plus one. `newcomer` is true for a pod that did not found the cluster.
*/}}
{{- define "redfence.identity" -}}
ordinal=${POD_NAME##*-}
export REDFENCE_ID=$((ordinal + 1))
export REDFENCE_ADVERTISE=$POD_NAME.$PEERS:7380
newcomer=false
if [ "$ordinal" -ge {{ int .Values.founders }} ]; then newcomer=true; fi
{{- range .Values.rejoin }}
if [ "$ordinal" -eq {{ int . }} ]; then newcomer=true; fi
{{- end }}
{{- end -}}

{{- define "redfence.mounts" -}}
- { name: data, mountPath: /var/lib/redfence }
- { name: auth, mountPath: /etc/redfence/auth, readOnly: true }
{{- if .Values.tls.enabled }}
- { name: tls, mountPath: /etc/redfence/tls, readOnly: true }
{{- end }}
{{- end -}}

{{- define "redfence.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "redfence.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* kubelet cannot show a client certificate. */}}
{{- define "redfence.probesByHttp" -}}
{{- if not (and .Values.tls.enabled (eq .Values.tls.clientAuth "required")) }}yes{{ end -}}
{{- end -}}

{{- define "redfence.httpGet" -}}
httpGet: { path: {{ .path }}, port: admin, scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }} }
{{- end -}}
